"""Wake-ups of the verb `wait` by LISTEN and NOTIFY, with a slow poll in case a notification is lost."""
