"""What tests share: worlds, models, servers and clients. No test is here."""
