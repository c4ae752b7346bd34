"""What the compiled time loops share."""
