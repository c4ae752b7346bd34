"""Files of measured data as columns of numbers, texts and times."""
