"""The interactive dashboard (Streamlit)."""
