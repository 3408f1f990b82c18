"""A choice becomes a loaded target, a drafter and a pool; costs and other properties of the model are measured."""
