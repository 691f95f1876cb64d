"""The transport between ranks: one thread and one private group, messages of unknown size, failures, checks of
options."""
