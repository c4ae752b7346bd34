"""A device server, looked at from outside: whether it does what docs/protocol.md says.

Written from the page alone. Nothing here comes from the client or the server of this package.
"""
