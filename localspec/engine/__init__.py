"""A choice becomes a loaded target, a drafter and a pool; what the policy asks about them is measured."""
