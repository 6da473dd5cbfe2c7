"""Algorithm 1 of the RotoGrad paper, line by line in NumPy, with hand-written backpropagation.

Everything is SGD. The net is z = W2 tanh(W1 x + b1) + b2 with linear heads; L_k is the sum of squares
over the batch, divided by the batch size. The update of a rotation (line 15) is taken on the manifold:
R <- R exp(-rate (R'E - E'R)) with E the gradient of line 14.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import expm


class Algorithm1:
    def __init__(self, W1, b1, W2, b2, heads, biases, size: int, rate: float, rotation_rate: float):
        self.W1, self.b1, self.W2, self.b2 = W1.copy(), b1.copy(), W2.copy(), b2.copy()
        self.heads = [head.copy() for head in heads]  # (d,)
        self.biases = [float(bias) for bias in biases]
        self.size, self.rate, self.rotation_rate = size, rate, rotation_rate
        self.rotations = [np.eye(size) for _ in heads]
        self.initial_norms: list[float] | None = None

    def step(self, X, Y) -> list[float]:
        """One training step; Y is (B, K). The task losses."""
        batch, m = len(X), self.size
        tasks = range(len(self.heads))
        hidden = np.tanh(X @ self.W1.T + self.b1)
        Z = hidden @ self.W2.T + self.b2  # line 1
        losses, G, rotated_gradients, head_updates = [], [], [], []
        for k in tasks:
            R = self.rotations[k]
            r = np.concatenate([Z[:, :m] @ R.T, Z[:, m:]], axis=1)
            errors = r @ self.heads[k] + self.biases[k] - Y[:, k]
            losses.append(float((errors**2).sum() / batch))  # line 3
            slope = 2 * errors / batch
            gradient_r = slope[:, None] * self.heads[k][None, :]  # line 5
            gradient_z = np.concatenate([gradient_r[:, :m] @ R, gradient_r[:, m:]], axis=1)
            G.append(gradient_z)  # line 4
            rotated_gradients.append(gradient_r[:, :m])
            head_updates.append((slope @ r, slope.sum()))
        norms = [float(np.sqrt((g**2).sum())) for g in G]
        U = [g / norm for g, norm in zip(G, norms, strict=True)]  # line 6
        if self.initial_norms is None:
            self.initial_norms = norms
        alphas = np.array(norms) / np.array(self.initial_norms)  # line 7
        alphas = alphas / alphas.sum()  # line 9
        C = float((alphas * np.array(norms)).sum())  # line 10
        merged = C * sum(U)  # line 11, by the chain rule
        back = (merged @ self.W2) * (1 - hidden**2)
        updates = (back.T @ X, back.sum(0), merged.T @ hidden, merged.sum(0))
        V = sum(U) / len(U)  # line 12
        for k in tasks:
            # line 14: L = - sum_n <R' g~_n, v_n> has the gradient E = - sum_n g~_n v_n'
            R, E = self.rotations[k], -rotated_gradients[k].T @ V[:, :m]
            self.rotations[k] = R @ expm(-self.rotation_rate * (R.T @ E - E.T @ R))  # line 15
            weight, bias = head_updates[k]
            self.heads[k] = self.heads[k] - self.rate * weight  # line 16
            self.biases[k] -= self.rate * bias
        self.W1 -= self.rate * updates[0]
        self.b1 -= self.rate * updates[1]
        self.W2 -= self.rate * updates[2]
        self.b2 -= self.rate * updates[3]
        return losses
