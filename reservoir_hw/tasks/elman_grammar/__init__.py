"""Next-word prediction on Elman's grammar."""
