"""Result files of other load generators, read and stored as studies."""
