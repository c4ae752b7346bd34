"""A source-measure unit, a switch matrix and a supply on a memristive film."""
