"""IMTL: both halves of impartial multi-task learning.

``imtl`` stands for ``imtl_l+imtl_g``: the losses are brought to one scale by learnt factors (IMTL-L)
and their gradients are merged with equal projections (IMTL-G).

Liu et al., Towards Impartial Multi-task Learning, ICLR 2021.
"""

from mtlkit.registry import methods

methods.alias("imtl", "imtl_l+imtl_g")
