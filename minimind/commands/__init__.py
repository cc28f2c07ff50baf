"""What each console command does."""
