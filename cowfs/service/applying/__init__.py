"""The parts of an apply: the plan, the contents, and who carries it out."""
