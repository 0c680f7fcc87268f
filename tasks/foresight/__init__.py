"""Foresight: what an order would be worth, said before an accelerator is touched.

In: a job, its prompts and, where they were captured, its routes. Out: facts, predictions and advice. Starts no engine
and pins nothing: a prediction is confirmed by a trial or not at all.
"""
