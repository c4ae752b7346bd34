"""Trained models at work: export to a bundle, and inference beside a reservoir."""
