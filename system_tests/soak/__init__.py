"""Long runs of groups, in which memory and internal topics must stay bounded."""
