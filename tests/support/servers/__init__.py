"""Real servers as processes, what stands beside them, and clients that speak to them."""
