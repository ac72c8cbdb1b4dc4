"""Public bugs of clients, reproduced as the pages of ``docs/exhibits`` say."""
