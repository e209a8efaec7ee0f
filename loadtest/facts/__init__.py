"""A real model learns a hundred facts about this project while it serves, and what it forgets meanwhile."""
