"""Figures that the S3D paper prints: rows of its tables 1 and 4 (A10G, MT-Bench, and M over all texts)."""

# (table, model, peak GiB and tokens/s on MT-Bench, M on MT-Bench, M over all three sets)
S3D_ROWS = (
    (1, "baseline, Llama-2-7B in 8 bits", 8.53, 7.02, 1.00, 1.00),
    (1, "Self-Spec", 7.77, 5.00, 0.78, 0.81),
    (1, "Medusa (Vicuna)", 9.09, 9.27, 1.24, 1.26),
    (1, "EAGLE", 9.58, 13.03, 1.65, 1.77),
    (1, "MCSD", 7.76, 7.72, 1.21, 1.21),
    (1, "Sequoia", 8.44, 8.64, 1.24, 1.27),
    (1, "Ouroboros", 7.95, 5.47, 0.84, 0.86),
    (1, "CLLM", 7.51, 11.75, 1.90, 2.01),
    (1, "S3D", 7.79, 12.39, 1.93, 1.87),
    (1, "S3D (Phi-3, fp16)", 8.14, 25.31, 3.78, 3.58),
    (4, "Phi-3 (8-bit)", 4.64, 8.91, 2.33, 2.38),
    (4, "Phi-3 (fp16)", 7.99, 16.43, 2.50, 2.32),
    (4, "Phi-3 (S3D, 8-bit)", 4.79, 14.39, 3.65, 4.23),
    (4, "Phi-3 (S3D, fp16)", 8.19, 26.00, 3.86, 4.42),
)
S3D_OVER_ALL = 1.87  # M of S3D in 8 bits, the same model as its baseline
