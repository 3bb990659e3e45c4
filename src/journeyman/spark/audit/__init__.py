"""What is wrong with logs: findings by dialect."""
