"""The HTTP port: how requests come in, routes with and without a version, the console."""
