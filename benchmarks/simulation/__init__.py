"""The simulation behind ``pd_simulation.py``: scheduler processes and what they tell each other."""
