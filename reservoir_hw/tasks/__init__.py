"""What a reservoir is driven with."""
