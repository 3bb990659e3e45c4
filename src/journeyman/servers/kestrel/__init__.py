"""The fan-out queues as a service: connections, the writer, the journals."""
