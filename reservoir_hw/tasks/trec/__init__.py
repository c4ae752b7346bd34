"""TREC: what a question asks for."""
