"""Figures that the S3D paper prints: rows of its table 1 (A10G, MT-Bench, and M over all texts)."""

# (method, peak GiB and tokens/s on MT-Bench, M on MT-Bench, M over all three sets)
S3D_ROWS = (
    ("baseline, Llama-2-7B in 8 bits", 8.53, 7.02, 1.00, 1.00),
    ("Self-Spec", 7.77, 5.00, 0.78, 0.81),
    ("Medusa (Vicuna)", 9.09, 9.27, 1.24, 1.26),
    ("EAGLE", 9.58, 13.03, 1.65, 1.77),
    ("Ouroboros", 7.95, 5.47, 0.84, 0.86),
    ("S3D", 7.79, 12.39, 1.93, 1.87),
)
S3D_OVER_ALL = 1.87  # M of S3D in 8 bits, the same model as its baseline
