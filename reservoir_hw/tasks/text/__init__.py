"""Say how a text goes on."""
