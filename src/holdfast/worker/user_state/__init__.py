"""State that user code keeps outside its tensors, and the callbacks that it runs once per step."""
