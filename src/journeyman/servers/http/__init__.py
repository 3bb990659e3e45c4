"""The HTTP port: routes, cross-site checks, OpenAPI."""
