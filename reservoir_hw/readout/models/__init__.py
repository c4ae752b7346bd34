"""Models trained by gradients: readouts for tokens, gates, LAERC, and language models around a reservoir."""
