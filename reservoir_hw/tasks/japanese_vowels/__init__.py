"""Japanese vowels: who speaks."""
