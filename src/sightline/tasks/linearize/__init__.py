"""Linear attention for trained softmax models: a student learns to give the outputs of its teacher."""
