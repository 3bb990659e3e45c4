"""The Overhop keyspace: an ordered map of queues, jobs and the indexes over them."""
