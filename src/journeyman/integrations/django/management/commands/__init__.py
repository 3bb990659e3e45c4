"""journeyman_worker."""
