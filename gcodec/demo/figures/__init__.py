"""The GComp paper's figures, drawn from trainings: what is counted, what codings cost, and the pictures."""
