"""How ranks reach each other: one thread and one private group, messages of unknown size, failures, checks of
options."""
