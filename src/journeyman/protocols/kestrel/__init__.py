"""The kestrel protocol (memcache text), server side: bytes in, events out."""
