"""IMTL: both halves of impartial multi-task learning.

``imtl`` stands for ``imtl_l+imtl_g``: the losses are brought to one scale by learned factors (IMTL-L)
and their gradients are merged with equal projections (IMTL-G).

Update scale: every loss has the factor 1 at first; K identical gradients g merge to g.

Differences: none from the paper. LibMTL's IMTL is the same pair; TorchJD has the halves apart.

Liu et al., Toward Impartial Multi-task Learning, ICLR 2021.
"""

from mtlkit.config import methods

methods.alias("imtl", "imtl_l+imtl_g")
