"""What the directories of queries say, as models; reads them through storages only."""
