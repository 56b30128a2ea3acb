"""A captured step once more, in another process: is it the same, and where did it begin?"""
