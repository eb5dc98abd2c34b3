"""Exports: the weights of a checkpoint for programs that know no holdfast. They know torch."""
