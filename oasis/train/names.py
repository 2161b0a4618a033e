"""Names of what the trainer takes, for those too who do without transformers, which takes seconds
to import.
"""

MODES = ("step", "fill")  # what a step trains on: a candidate batch's selection, or a full batch
LAYERS = ("head", "last_block")  # whose gradients the Gram matrix is of
