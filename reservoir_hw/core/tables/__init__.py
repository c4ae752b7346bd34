"""Files of measured data, and data frames, as columns of numbers, texts and times."""
