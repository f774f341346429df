"""The journal of a run: its entries, their chain, what they add up to, and how they are verified and exported."""
