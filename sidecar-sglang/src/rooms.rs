//! Bootstrap rooms: the numbers under which a prefill and a decode engine find each other.
