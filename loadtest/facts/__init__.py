"""A hundred facts about this project that a real model learns while it serves, and what it forgets for them."""
