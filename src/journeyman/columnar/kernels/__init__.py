"""What the compiled kernels are made of: reading, writing, hashing, walking."""
