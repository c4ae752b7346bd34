"""Looking at one device: what it says about itself, and what it is worth."""
