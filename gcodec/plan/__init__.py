"""The encoder's decisions, none of which a decoder needs: codebooks, references, columns, predictions."""
