"""What a run tells of itself: live table, JSON lines, TensorBoard, Chrome trace."""
