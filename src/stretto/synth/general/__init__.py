"""Any network: the best fractions, cut into whole pieces, planned again and again."""
